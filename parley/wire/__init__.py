"""Messages along edges: how they are written, who hosts whom, and how they travel."""
