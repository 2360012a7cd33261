"""What commands share: options, their values, questions put together, what is printed."""
