"""The parties: their jobs, their agreement, their processes and who watches them."""
