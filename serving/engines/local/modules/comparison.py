"""The comparison with transformers in a process of its own, which records that it found the numbers the same.

    python -m serving.engines.local.modules.comparison MODEL SETTINGS RECORD

So whoever starts to serve loads its own modules meanwhile, and neither imports transformers nor holds the model twice.
Where nothing is recorded, who loads the model compares for itself, and says what is wrong."""

import sys
from pathlib import Path

from core.errors import ConfigError
from core.settings import ServingSettings
from serving.engines.local.model import load_decoder
from serving.engines.local.modules.plain import read_plain_config


def main(directory: Path, settings: ServingSettings, record: Path) -> None:
    """Compare, if the model has plain modules, and write the record."""
    if read_plain_config(directory) is None:
        return
    try:
        load_decoder(directory, settings, record)
    except ConfigError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]), ServingSettings.model_validate_json(sys.argv[2]), Path(sys.argv[3]))
