"""Keys and certificates: who a peer is.

A peer has a private key, which never leaves its machine, and a certificate with its name. Others
know the certificate by its fingerprint, the SHA-256 of its bytes, or by the authority that signed
it. Keys are ECDSA on P-256, and files are PEM, so that any other tool can make or inspect them.
"""

import datetime
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from parley.errors import BadValue
from parley.files import SMALL, Unreadable, read_bytes, sync_folder

DAYS = 825
"""How long a certificate is valid unless somebody says otherwise."""

NAMES = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")
VALID_NAME = "1 to 63 letters, digits, dots and hyphens, such as ward-a"


@dataclass(frozen=True)
class Identity:
    """A peer's key and certificate on disk."""

    name: str
    key: Path
    certificate: Path

    @property
    def fingerprint(self) -> str:
        """What others know the certificate by."""
        return fingerprint(read_certificate(self.certificate))


def checked_name(name: str, field: str = "name") -> str:
    """The name, if a peer may have it."""
    if not NAMES.fullmatch(name):
        raise BadValue(field, name, VALID_NAME)
    return name


def fingerprint(certificate: bytes) -> str:
    """Of a certificate in DER, as ``openssl x509 -fingerprint -sha256`` has it without colons.

    >>> fingerprint(b"")[:15]
    'sha256:e3b0c442'
    """
    return f"sha256:{hashlib.sha256(certificate).hexdigest()}"


def new(name: str, folder: Path, days: int = DAYS) -> Identity:
    """A new key with a certificate that it signs itself."""
    key_path, certificate_path = _vacant(name, folder, ".key", ".crt")
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _certificate(name, key.public_key(), _subject(name), key, days)
    _write_both(key_path, key, certificate_path, certificate)
    return Identity(name, key_path, certificate_path)


def authority(name: str, folder: Path, days: int = 2 * DAYS) -> Identity:
    """A new key that signs other peers' certificates, and its own certificate."""
    key_path, certificate_path = _vacant(name, folder, ".key", ".crt")
    key = ec.generate_private_key(ec.SECP256R1())
    made = _certificate(name, key.public_key(), _subject(name), key, days, authority=True)
    _write_both(key_path, key, certificate_path, made)
    return Identity(name, key_path, certificate_path)


def request(name: str, folder: Path) -> tuple[Path, Path]:
    """A new key, and a request to sign it that can be sent to the authority."""
    key_path, request_path = _vacant(name, folder, ".key", ".csr")
    key = ec.generate_private_key(ec.SECP256R1())
    made = x509.CertificateSigningRequestBuilder().subject_name(_subject(name))
    _write_both(key_path, key, request_path, made.sign(key, hashes.SHA256()))
    return key_path, request_path


def sign(request_path: Path, ca: Path, folder: Path, days: int = DAYS) -> Path:
    """The certificate that an authority gives to whoever made the request.

    `ca` is the authority's certificate; its key lies beside it.
    """
    try:
        asked = x509.load_pem_x509_csr(_read("request", request_path))
    except ValueError:
        raise BadValue("request", str(request_path), "what parley keys request wrote") from None
    names = asked.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    name = checked_name(str(names[0].value) if len(names) == 1 else "", "request")
    public = _public_key(asked)
    if not isinstance(public, ec.EllipticCurvePublicKey):
        raise BadValue("request", str(request_path), "an elliptic-curve key")
    if not asked.is_signature_valid:
        raise BadValue("request", str(request_path), "one that its own key has signed")
    issuer = x509.load_der_x509_certificate(read_certificate(ca, "ca"))
    if not may_sign(issuer):
        raise BadValue("ca", str(ca), "a certificate that parley keys ca wrote", "it may not sign")
    key = read_key(ca.with_suffix(".key"))
    [path] = _vacant(name, folder, ".crt")
    made = _certificate(name, public, issuer.subject, key, days)
    _write(path, made.public_bytes(serialization.Encoding.PEM))
    return path


def find(name: str, folder: Path) -> Identity:
    """A peer's key and certificate in a folder, checked to belong together and to be private."""
    key_path, certificate_path = folder / f"{name}.key", folder / f"{name}.crt"
    key = read_key(key_path)
    certificate = x509.load_der_x509_certificate(read_certificate(certificate_path))
    if os.name == "posix" and key_path.stat().st_mode & 0o077:
        because = "others on this machine may read it"
        raise BadValue("keys", str(key_path), f"a private file: chmod 600 {key_path}", because)
    if _public_key(certificate) != key.public_key():
        because = f"{key_path.name} is not the key of this certificate"
        raise BadValue("keys", str(certificate_path), f"the certificate of {key_path}", because)
    if certificate_name(certificate) != name:
        because = f"it names {certificate_name(certificate) or 'nobody'}"
        raise BadValue("keys", str(certificate_path), f"a certificate of {name}", because)
    return Identity(name, key_path, certificate_path)


def _public_key(of: x509.Certificate | x509.CertificateSigningRequest) -> object:
    """None if it is of a kind that this version cannot read."""
    try:
        return of.public_key()
    except (ValueError, UnsupportedAlgorithm):
        return None


def read_certificate(path: Path, field: str = "keys") -> bytes:
    """A certificate's DER bytes from a PEM file."""
    try:
        found = x509.load_pem_x509_certificate(_read(field, path))
    except ValueError:
        raise BadValue(field, str(path), "a certificate in PEM, such as NAME.crt") from None
    return found.public_bytes(serialization.Encoding.DER)


def check_current(path: Path) -> None:
    """Refuses a certificate that others would, since its time has not come or is over."""
    found = x509.load_der_x509_certificate(read_certificate(path))
    begin, end = found.not_valid_before_utc, found.not_valid_after_utc
    now = datetime.datetime.now(datetime.UTC)
    if not begin <= now <= end:
        valid = "a new one by parley keys, or this host's clock set right"
        because = f"valid from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC, and it is"
        raise BadValue("keys", str(path), valid, f"{because} {now:%Y-%m-%d %H:%M}")


def certificate_name(certificate: x509.Certificate) -> str:
    """Whom a certificate names; empty if that cannot be told."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def may_sign(certificate: x509.Certificate) -> bool:
    """Whether a certificate is an authority's."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except x509.ExtensionNotFound:
        return False
    return found.value.ca


def _certificate(
    name: str,
    public: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    days: int,
    authority: bool = False,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    # Clocks of other hosts may be a little behind.
    begin, end = now - datetime.timedelta(hours=1), now + datetime.timedelta(days=days)
    usage = x509.KeyUsage(
        digital_signature=not authority, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=authority,
        crl_sign=authority, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    path_length = 0 if authority else None
    own, signer = (x509.SubjectKeyIdentifier.from_public_key(k) for k in (public, key.public_key()))
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer)
    made = (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(authority, path_length), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(own, critical=False)
        .add_extension(signed_by, critical=False)
    )
    if not authority:
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        made = made.add_extension(x509.ExtendedKeyUsage(both), critical=False)
        named = x509.SubjectAlternativeName([x509.DNSName(name)])
        made = made.add_extension(named, critical=False)
    return made.sign(key, hashes.SHA256())


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _vacant(name: str, folder: Path, *endings: str) -> list[Path]:
    """The files to write; none of them may be there, since a key that is lost is lost for ever."""
    checked_name(name)
    paths = [folder / f"{name}{ending}" for ending in endings]
    for path in paths:
        if path.exists():
            because = "it would be overwritten"
            raise BadValue("name", name, f"a name without {path}, or another --dir", because)
    return paths


def _write_both(
    key_path: Path,
    key: ec.EllipticCurvePrivateKey,
    path: Path,
    public: x509.Certificate | x509.CertificateSigningRequest,
) -> None:
    """A key and what others may see of it; neither is left if the disk is full."""
    _write_key(key_path, key)
    try:
        _write(path, public.public_bytes(serialization.Encoding.PEM))
    except BaseException:
        key_path.unlink(missing_ok=True)
        raise


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Readable by its owner alone from the first moment on."""
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write(path, pem, 0o600)


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(opened, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadValue("dir", str(path.parent), "a folder that can be written", reason) from None


def _read(field: str, path: Path) -> bytes:
    try:
        return read_bytes(path, SMALL)
    except Unreadable as error:
        made = "parley keys new makes one" if field == "keys" else ""
        because = "; ".join(filter(None, [str(error), made]))
        raise BadValue(field, str(path), "a file that can be read", because) from None


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A private key from a PEM file."""
    try:
        key = serialization.load_pem_private_key(_read("keys", path), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise BadValue("keys", str(path), "an unencrypted private key in PEM") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadValue("keys", str(path), "an elliptic-curve key, as parley keys new makes")
    return key
