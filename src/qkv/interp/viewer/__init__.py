"""What is seen, drawn: one offline HTML file, PNG pictures, and a frame for notebooks."""

from qkv.interp.viewer.html import html
from qkv.interp.viewer.notebook import frame, widget
from qkv.interp.viewer.scene import Axis, Panel, Picture, Scene, pixels_of, scene_of, with_map

__all__ = ["Axis", "Panel", "Picture", "Scene", "frame", "html", "pixels_of", "scene_of", "widget", "with_map"]
