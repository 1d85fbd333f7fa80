package model

import "time"

// Heard is what one gateway knows of the Peers' handshakes.
type Heard struct {
	// Gateway is the node that listens.
	Gateway string
	// Last is when it last shook hands with a party; absent: never.
	Last map[Key]time.Time
}
