package failover

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/kilo-overlay/kilo/core/model"
)

// Kind is what a Message is about.
type Kind string

const (
	// Ask asks the location's nodes whether the sender may take over.
	Ask Kind = "ask"
	// Ack answers Ask.
	Ack Kind = "ack"
	// Says tells who serves a location. WireGuard takes nothing twice; what comes
	// another way, without the receiver's nonce, is a hint, which it answers with
	// Prove.
	Says Kind = "says"
	// Prove asks for a Says that is fresh, and brings the nonce for it.
	Prove Kind = "prove"
	// Heard acknowledges Says: the sender's routes follow.
	Heard Kind = "heard"
	// Yield asks a node that stands by to serve in the sender's place, under an epoch
	// above that of Claim, which is the sender's.
	Yield Kind = "yield"
	// Next says that the sender is about to serve in the place of a gateway that
	// works, so that others send it its own by its own tunnel already. Ready
	// acknowledges it: the sender's routes are so.
	Next  Kind = "next"
	Ready Kind = "ready"
	// Reach asks whether a node answers through its own tunnel, and Reached says so.
	Reach   Kind = "reach"
	Reached Kind = "reached"
)

// Message is what agents tell each other about who serves, one UDP datagram.
type Message struct {
	Kind     Kind   `json:"kind"`
	From     string `json:"from"` // names of Nodes
	To       string `json:"to"`
	Location string `json:"location"`
	Claim    Claim  `json:"claim"`
	// Nonce is the receiver's, as it gave it; Own is the sender's, for the answer.
	// A message whose Nonce is not the receiver's own may be an old one.
	Nonce uint64 `json:"nonce,omitempty"`
	Own   uint64 `json:"own,omitempty"`
	// Yes is for Ack, that the sender sees the failure too, and for Reached, that
	// the node answers.
	Yes bool `json:"yes,omitempty"`
}

// MaxMessage is the largest datagram in bytes.
const MaxMessage = 1200

// Secret is what two nodes share: X25519 of the one's private and the other's
// published key. It is a secret.
type Secret [32]byte

// String keeps a Secret out of what is printed.
func (Secret) String() string { return "secret" }

// GoString keeps a Secret out of what is printed.
func (Secret) GoString() string { return "secret" }

// tag makes these messages differ from whatever else the two nodes might
// authenticate with their secret.
const tag = "kilo failover 1"

// Seal returns the datagram: a MAC (HMAC-SHA-256, RFC 2104) of 32 bytes over both
// ends' keys and the text, and the text.
func (m Message) Seal(s Secret, from, to model.Key) ([]byte, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(text)+sha256.Size > MaxMessage {
		return nil, fmt.Errorf("message of %d bytes: at most %d fit", len(text)+sha256.Size, MaxMessage)
	}
	return append(mac(s, from, to, text), text...), nil
}

func mac(s Secret, from, to model.Key, text []byte) []byte {
	h := hmac.New(sha256.New, s[:])
	h.Write([]byte(tag))
	h.Write(from[:])
	h.Write(to[:])
	h.Write(text)
	return h.Sum(nil)
}

var errForged = errors.New("the message is not from who it says")

// Sender reads who a datagram says it is from, which nothing proves yet.
func Sender(datagram []byte) (string, error) {
	m, err := parse(datagram)
	return m.From, err
}

func parse(datagram []byte) (m Message, err error) {
	if len(datagram) <= sha256.Size || len(datagram) > MaxMessage {
		return m, fmt.Errorf("a datagram of %d bytes is no message", len(datagram))
	}
	return m, json.Unmarshal(datagram[sha256.Size:], &m)
}

// Open checks the MAC and returns the message.
func Open(datagram []byte, s Secret, from, to model.Key) (Message, error) {
	m, err := parse(datagram)
	if err != nil {
		return Message{}, err
	}
	if !hmac.Equal(mac(s, from, to, datagram[sha256.Size:]), datagram[:sha256.Size]) {
		return Message{}, errForged
	}
	return m, nil
}
