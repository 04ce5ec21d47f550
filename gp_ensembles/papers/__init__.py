"""Offline tools of the papers: ``sparse``, ``fusion``, ``quadrature``, ``gplvm``; no other package imports them."""
