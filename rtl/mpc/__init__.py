"""Building blocks of the processing core: buffer, memory access, registers, queues, semaphores."""
