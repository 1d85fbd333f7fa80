package model

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
)

// KeyLen is the length of WireGuard's keys in bytes (Curve25519).
const KeyLen = 32

// Key is a WireGuard public key. It is not a secret. The zero Key means "none".
type Key [KeyLen]byte

// ParseKey reads a public key in the base64 form that wg(8) prints, 44
// characters.
func ParseKey(s string) (Key, error) {
	b, err := parse32(s)
	return Key(b), err
}

func parse32(s string) (b [KeyLen]byte, err error) {
	raw, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || len(raw) != KeyLen {
		return b, fmt.Errorf("not a WireGuard key: want %d bytes in base64 (44 characters), got %d characters", KeyLen, len(s))
	}
	copy(b[:], raw)
	return b, nil
}

// IsZero tells whether k is no key at all.
func (k Key) IsZero() bool { return k == Key{} }

// String returns the base64 form that wg(8) prints.
func (k Key) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// MarshalText implements encoding.TextMarshaler, so that a Key can be the key
// of a JSON object.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *Key) UnmarshalText(b []byte) error {
	parsed, err := ParseKey(string(b))
	if err != nil {
		return err
	}
	*k = parsed
	return nil
}

// PresharedKey is a WireGuard preshared key: a secret. Every way of printing
// or marshalling one shows at most a fingerprint; only Bytes gives it away.
// The zero PresharedKey means "none".
type PresharedKey struct{ b [KeyLen]byte }

// ParsePresharedKey reads a preshared key in wg(8)'s base64 form. The error
// does not repeat the input.
func ParsePresharedKey(s string) (PresharedKey, error) {
	b, err := parse32(s)
	return PresharedKey{b}, err
}

// NewPresharedKey makes a PresharedKey of its bytes.
func NewPresharedKey(b [KeyLen]byte) PresharedKey { return PresharedKey{b} }

// IsZero tells whether there is no preshared key.
func (p PresharedKey) IsZero() bool { return p == PresharedKey{} }

// Bytes returns the secret itself.
func (p PresharedKey) Bytes() [KeyLen]byte { return p.b }

// String returns "none" or a short fingerprint that tells two keys apart.
func (p PresharedKey) String() string {
	if p.IsZero() {
		return "none"
	}
	sum := sha256.Sum256(p.b[:])
	return "sha256:" + hex.EncodeToString(sum[:4])
}

// GoString keeps %#v from printing the secret.
func (p PresharedKey) GoString() string { return "model.PresharedKey(" + p.String() + ")" }

// Format keeps every other verb, %x and %d among them, from printing it.
func (p PresharedKey) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(p.String())) }

// MarshalText writes the fingerprint: a snapshot or status never holds the secret.
func (p PresharedKey) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText accepts what MarshalText wrote and gives "none": the secret is
// not there to be read back.
func (p *PresharedKey) UnmarshalText([]byte) error { *p = PresharedKey{}; return nil }
