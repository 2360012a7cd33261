"""What commands print: tables for people, JSON objects for programs."""
