from aero.export.remote_code import export_remote_code as export_remote_code
from aero.export.weights_folder import export_weights as export_weights
