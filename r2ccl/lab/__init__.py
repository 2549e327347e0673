"""Emulated multi-NIC hosts on one Linux machine, and faults on their real interfaces.

Start with :class:`Lab` in hosts.py. namespaces.py makes a network namespace that needs no cleaning up, rails.py wires
hosts to bridges and shapes the rates, routers.py joins rails or lays several ways between hosts, faults.py cuts and
heals, enter.py runs inside each child before its program, leftovers.py ends what a killed lab may have left. Needs root
(or a user namespace, see superuser.py) and pyroute2.
"""

from __future__ import annotations

from r2ccl.lab.hosts import Lab, LabUnavailable, can_create_namespaces
from r2ccl.lab.leftovers import sweep

__all__ = ["Lab", "LabUnavailable", "can_create_namespaces", "sweep"]
