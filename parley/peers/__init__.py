"""Organisations that train together over the open network: keys, links, no coordinator."""
