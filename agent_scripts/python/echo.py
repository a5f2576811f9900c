"""Answers each request with its own content.

gagent run echo.py
gagent request echo "hello"
"""

import gagent_py


class Echo(gagent_py.Agent):
    def on_message(self, msg):
        if msg.performative == "request":
            return self.reply(msg, "inform", msg.content)
        return self.noop()


Echo().run()
