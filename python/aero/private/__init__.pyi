from aero.private.environment import PrivateEnvironmentError as PrivateEnvironmentError
from aero.private.job import generate_privately as generate_privately
from aero.private.links.keys import Security as Security
from aero.private.links.keys import make_keys as make_keys
from aero.private.party import ask as ask
from aero.private.serving import serve as serve
from aero.private.settings import PrivateSettings as PrivateSettings
from aero.private.two_processes import generate_over_tcp as generate_over_tcp
