"""MEM's encoder and losses as a representation: the policy acts on shared and specific features."""

from manyview.mem import MEMRepresentation, MEMRepresentationConfig
from manyview.methods.interfaces import BuildContext
from manyview.methods.registry import register_representation


@register_representation("mem", MEMRepresentationConfig)
def build_mem(config: MEMRepresentationConfig, context: BuildContext) -> MEMRepresentation:
    """Build MEM's representation."""
    return MEMRepresentation(context.view_names, context.image_shape, config)
