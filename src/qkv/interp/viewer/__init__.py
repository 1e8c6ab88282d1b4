"""The attention viewer: an offline HTML page (also in notebooks), PNG figures, and text for the terminal."""

from qkv.interp.viewer.page import render_html, render_iframe, widget
from qkv.interp.viewer.scene import Axis, Panel, PatchImage, Scene, add_map, make_scene, to_pixels

__all__ = [
    "Axis",
    "Panel",
    "PatchImage",
    "Scene",
    "add_map",
    "make_scene",
    "render_html",
    "render_iframe",
    "to_pixels",
    "widget",
]
