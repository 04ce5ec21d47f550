"""Our presets and what a user would pick instead, on the same rows, each honestly one step ahead."""
