from aero.export.plain_weights import export_weights as export_weights
from aero.export.remote_code import export_remote_code as export_remote_code
