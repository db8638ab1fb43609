"""Checks whether this machine and the services that it uses can run declared streams, and says how to fix each
fault.
"""

from __future__ import annotations
