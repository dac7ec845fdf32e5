"""DSTAR on whole models: wrap a Diffusion Transformer, run its sampler, read a report.

:func:`~dstar.golden.model.apply.apply` replaces linear layers and watches attention;
:class:`~dstar.golden.model.fmdq.FMDQ` and :class:`~dstar.golden.model.sar.SAR` say what happens
there.  Anything else that implements :mod:`dstar.golden.model.method` runs in the same wrapper.
Needs PyTorch.
"""
