"""Services whose model counts as compared with transformers: the comparison takes a process that imports these.

That it is made, and what it finds, is what `tests/serving/engines/local` is about."""

from onward.wiring.foundation import Foundation


def as_compared(foundation: Foundation) -> None:
    """Write the record of the comparison of the given model, as a service that was started before has it."""
    from serving.engines.local.model import context_length
    from serving.engines.local.modules.check_record import digest_of_check, write_record
    from serving.engines.local.modules.plain import read_plain_config

    config = read_plain_config(foundation.model)
    assert config is not None, "the model is one that is compared"
    serving = foundation.settings.serving
    context = context_length(config, serving)
    digest = digest_of_check(foundation.model, serving.local.device, serving.local.dtype, context)
    write_record(foundation.layout.model_check, digest)
