from aero.private.links.keys import Security as Security
from aero.private.links.keys import make_keys as make_keys
from aero.private.parties.job import generate_privately as generate_privately
from aero.private.parties.party import ask as ask
from aero.private.parties.serving import serve as serve
from aero.private.parties.two_processes import generate_over_tcp as generate_over_tcp
from aero.private.settings import PrivateSettings as PrivateSettings
