from .api import AlloyError as AlloyError
from .api import Entry as Entry
from .api import Merged as Merged
from .api import Recipe as Recipe
from .api import Stack as Stack
from .api import analyze as analyze
from .api import estimate as estimate
from .api import inspect as inspect
from .api import load as load
from .api import merge as merge
from .api import open_base as open_base
from .api import plan as plan
from .api import rewrite as rewrite
from .proving import verify as verify
from .tuning import Tuning as Tuning
from .tuning import tune as tune

__version__: str
WEB_DIRECTORY: str
