"""Certificates for jobs with TLS, made with the program openssl. For C++: certificates.h."""
import subprocess
from pathlib import Path


def flags_of_new(folder, addresses, names=()):
    """ddp-run's flags for a node whose certificate has these numeric addresses and names, of an authority of its own. Files are in the
    folder: node.pem, node.key, ca.pem."""
    folder = Path(folder)

    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)
    (folder / "node.ext").write_text(f"subjectAltName={','.join([*(f'IP:{each}' for each in addresses), *(f'DNS:{each}' for each in names)])}\n")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test-authority", "-days", "2")
    openssl("req", *curve, "-keyout", "node.key", "-out", "node.csr", "-subj", "/CN=node")
    openssl("x509", "-req", "-in", "node.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", "node.pem", "-days", "2",
            "-extfile", "node.ext")
    return ["--tls-cert", str(folder / "node.pem"), "--tls-key", str(folder / "node.key"), "--tls-ca", str(folder / "ca.pem")]
