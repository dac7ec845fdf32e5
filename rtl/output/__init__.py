"""The MPU's output path: integers to binary16 token vectors."""
