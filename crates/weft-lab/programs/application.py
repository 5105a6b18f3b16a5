"""An application for gunicorn: answers with what is asked for, in many pieces."""


def application(environ, start_response):
    count = int(environ["PATH_INFO"].strip("/"))
    start_response("200 OK", [("Content-Length", str(count))])
    return [b"x" * 500] * (count // 500) + [b"y" * (count % 500)]
