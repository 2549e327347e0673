"""Programs written for Horovod, on r2ccl. :mod:`r2ccl.horovod_style` has the public names.

``job`` says who takes part, ``calls`` has the collectives, ``state`` what all ranks begin with, ``optimizer`` the
gradients, ``compression`` what they look like on the wire.
"""
