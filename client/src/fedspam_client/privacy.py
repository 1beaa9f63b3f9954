"""The client's side of a secure sum and of differential privacy; give the server the same settings.

Differential privacy needs ``pip install 'fedspam-client[privacy]'``.
"""

from fedspam_client._shared.flower.privacy.differential import Privacy as Privacy, rho_for as rho_for
from fedspam_client._shared.flower.privacy.secure_client import SecureSum as SecureSum
