"""From run folders to something worth sending: records, charts, pictures, one page."""
