"""What is seen, drawn: one offline HTML file, PNG pictures, and a frame for notebooks."""

from qkv.look.page.html import html
from qkv.look.page.notebook import frame, widget
from qkv.look.page.scene import Axis, Panel, Picture, Scene, pixels_of, scene_of, with_map

__all__ = ["Axis", "Panel", "Picture", "Scene", "frame", "html", "pixels_of", "scene_of", "widget", "with_map"]
