"""What models have beyond a plain layer, and who computes it."""

from .bundle import unsupported


def check_features(bundle, adapter_class):
    """Refuses a model that has what the adapter does not compute, rather than leave it out. Within a window all is
    as without one."""
    features = adapter_class.ENCODER_FEATURES if bundle.encoder else adapter_class.FEATURES
    known = {*bundle.features} - {"audio"} if features is None else {"window", *features}
    if adapter_class.HEARS:
        known.add("audio")
    beyond = [words for name, words in bundle.features.items() if name not in known]
    if beyond:
        raise unsupported(f"the model has {', '.join(beyond)}, which {adapter_class.FRAMEWORK} does not compute here")


def keep_within_window(bundle, adapter):
    """Has `begin` refuse a context longer than the window, where the adapter computes none."""
    features, begin = adapter.FEATURES, adapter.begin
    if features is None or "window" in features or "window" not in bundle.features:
        return

    def checked(batch, capacity):
        if capacity > bundle.window:
            raise unsupported(
                f"{capacity} tokens are more than the model's sliding window of {bundle.window}, which "
                f"{adapter.FRAMEWORK} does not compute here"
            )
        begin(batch, capacity)

    adapter.begin = checked
