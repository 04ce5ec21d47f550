"""Tables of many series: ``stream --series COLUMN`` and ``resume``."""
