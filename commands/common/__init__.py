"""Parts that commands share: options and their values, problems from options, output."""
