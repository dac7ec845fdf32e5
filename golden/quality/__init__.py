"""Quality of sampled images under quantization and sparsity, with confidence intervals."""
