"""Messages along edges: how they are encoded, who hosts which agents, and how they travel."""
