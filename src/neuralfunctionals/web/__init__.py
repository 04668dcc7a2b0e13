"""The web page: draw a digit, watch it become a network, edit its weights, shuffle its neurons."""

from neuralfunctionals.web.exhibit import Changes, Exhibit, Models, Reading
from neuralfunctionals.web.server import serve

__all__ = ["Changes", "Exhibit", "Models", "Reading", "serve"]
