"""Output of commands: tables for people, JSON objects for programs."""
