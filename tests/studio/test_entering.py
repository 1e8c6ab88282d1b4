"""A browser is let in by the file, and finds the page."""


def test_a_browser_that_opens_the_file_finds_the_rooms(serving, visit):
    visitor = visit(serving())
    titles = visitor.page.locator("nav a").all_inner_texts()
    assert titles == ["Playground", "Claims", "Models", "Runs", "Check"]


def test_two_browsers_are_let_in_by_the_same_file(serving, visit):
    place = serving()
    assert visit(place).page.title() == visit(place).page.title() == "qkv studio"
