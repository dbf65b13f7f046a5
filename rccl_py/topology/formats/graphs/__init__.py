"""GraphML and networkx node-link JSON, read and written."""
