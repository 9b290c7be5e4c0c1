"""How every benchmark answers. One flag for all, so that several can be imported at once."""

from absl import flags

JSON = flags.DEFINE_bool("json", False, "Print one JSON object instead of tables.")
