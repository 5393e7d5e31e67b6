"""Certificates for a plane on this machine, made by openssl."""

import subprocess
from pathlib import Path


def certificates(folder):
    """A CA, and a certificate of it for localhost."""

    def openssl(*words):
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, cwd=folder)

    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-days", 2, "-subj", "/CN=test CA")
    openssl("req", *curve, "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=plane")
    Path(folder, "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl("x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", 2, "-extfile", "names", "-out", "cert.pem")
    return folder
