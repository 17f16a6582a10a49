"""Make responses late, reordered, failed, lost or duplicated."""

from playwright.sync_api import Error

FATES = ("late", "late", "overtaken", "busy", "broken", "dropped", "lost", "twice", "plain")
STATUSES = {"busy": 503, "broken": 500}


class Answers:
    """Decide the fate of each response from these addresses until `honest`. `told` records what
    became of each response and what a test adds in between, for its failure message."""

    def __init__(self, page, addresses, random):
        self.page, self.random = page, random
        self.told = []
        page.route(addresses, self.answer)

    def answer(self, route):
        fate = self.random.choice(FATES)
        wait = self.random.choice((10, 60, 150, 400, 900))
        self.told.append(f"{fate} {wait}")
        try:
            if fate in STATUSES:
                route.fulfill(status=STATUSES[fate], body=fate)
            elif fate == "dropped":
                route.abort("connectionreset")
            else:
                self.ask(route, fate, wait)
        except Error as error:
            # The page has asked again meanwhile or is gone; its request has reached the server
            # anyway.
            self.told.append(str(error).splitlines()[0])

    def ask(self, route, fate, wait):
        if fate == "overtaken":
            self.page.wait_for_timeout(wait)
        answer = route.fetch()
        if fate == "twice":
            answer = route.fetch()
        if fate == "lost":
            route.abort("connectionreset")
            return
        if fate == "late":
            self.page.wait_for_timeout(wait)
        route.fulfill(response=answer)

    def honest(self):
        self.page.unroute_all(behavior="wait")
