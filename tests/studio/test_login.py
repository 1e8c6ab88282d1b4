"""A browser that opens the login file is logged in and sees the page."""


def test_opening_the_login_file_shows_all_pages(serving, visit):
    visitor = visit(serving())
    titles = visitor.page.locator("nav a").all_inner_texts()
    assert titles == ["Playground", "Claims", "Models", "Runs", "Check"]


def test_two_browsers_can_log_in_with_the_same_file(serving, visit):
    place = serving()
    assert visit(place).page.title() == visit(place).page.title() == "qkv studio"
