"""Settings: one typed model, from a TOML file, the environment and the command line.

Later sources win: defaults, then the file (`-c heta.toml` or `DGL_HETA_CONFIG`), then
environment variables (`DGL_HETA_TRAIN__LR=0.01`), then `--set train.lr=0.01`.

Providers bring settings of their own, in sections `[plugins.NAME]` (`DGL_HETA_PLUGINS__NAME__KEY`,
`--set plugins.NAME.key=value`). They are kept as given here; :meth:`Plugins.configured
<dgl_heta.hooks.manager.Plugins.configured>`, which knows the providers, checks them.
"""

from dgl_heta.settings.fanouts import check_layers, default_fanouts, parse_fanouts, wrong_fanout
from dgl_heta.settings.origins import Origin
from dgl_heta.settings.read_settings import (
    ENV_PREFIX,
    PLAIN_VARIABLES,
    keys,
    load_settings,
    read_section,
    section_name,
    setting_variables,
)
from dgl_heta.settings.sections import (
    CacheSettings,
    ModelSettings,
    PartitionSettings,
    RunSettings,
    Settings,
    TaskSettings,
    TrainSettings,
)
from dgl_heta.settings.toml import parse_toml, read_toml

__all__ = ["ENV_PREFIX", "PLAIN_VARIABLES", "CacheSettings", "ModelSettings", "Origin",
           "PartitionSettings", "RunSettings", "Settings", "TaskSettings", "TrainSettings",
           "check_layers", "default_fanouts", "keys", "load_settings", "parse_fanouts",
           "parse_toml", "read_section", "read_toml", "section_name", "setting_variables",
           "wrong_fanout"]
