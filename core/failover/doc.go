// Package failover decides when a gateway that stands by takes over, and how it
// tells the others. Decisions are functions of what was seen, with the time handed
// in; sockets and goroutines are core/agent's.
//
// The signs. A node that stands by asks gateways of other locations, many times a
// second and each question twice: on the way that members' packets take, through
// the serving gateway and back, and through its own tunnel. The kernel at the other
// end answers both. When the second is answered and the first is not, the serving
// gateway does not serve, whatever it says of itself. When neither is, the fault is
// elsewhere, and nothing is done (Watch).
//
// The vote. Before it takes over, it asks the nodes of its location: its own cable
// may be what is broken. Most must answer, and where members watch the way too, one
// of them must see what it sees (Election).
//
// The claim. It serves under a higher epoch, and says so to its location's nodes
// and to the armed gateways of the others (Message). Everybody keeps the highest
// epoch of every location (Book), and believes only a node that stands by for that
// very location. The Node object is written when the API server can be reached;
// nothing waits for it.
//
// Start with Watch.
package failover
