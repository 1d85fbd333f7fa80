package failover

import "time"

// AskFor is how long a vote is waited for.
const AskFor = 150 * time.Millisecond

// Voter is a node of the location whose answer counts: all that run an agent but
// the serving gateway and the node that asks.
type Voter struct {
	Name string
	// Witness tells that the node watches the members' way.
	Witness bool
}

// Election is one attempt to take over. It is made by Ask, and for one goroutine.
type Election struct {
	// Epoch is the one to serve under.
	Epoch  uint64
	began  time.Time
	voters map[string]Voter
	// answers is who has answered: true for those that see the failure too.
	answers map[string]bool
}

// NewElection begins an attempt.
func NewElection(epoch uint64, voters []Voter, now time.Time) *Election {
	e := &Election{Epoch: epoch, began: now, voters: map[string]Voter{}, answers: map[string]bool{}}
	for _, v := range voters {
		e.voters[v.Name] = v
	}
	return e
}

// Ack notes that a voter answered; concurs tells that it sees the failure too.
func (e *Election) Ack(name string, concurs bool) {
	if _, ok := e.voters[name]; ok {
		e.answers[name] = e.answers[name] || concurs
	}
}

// Won tells whether the node may take over: more than half of the voters answered,
// and one of the witnesses, where there are any, sees what it sees.
//
// A location of two nodes has no voters: then the node that stands by decides
// alone. Should its own cable be what is broken, it takes the other node's traffic
// along, and cannot deliver it; so it asks for more (see Alone).
func (e *Election) Won() bool {
	witnesses, concurring := 0, 0
	for name, v := range e.voters {
		if v.Witness {
			witnesses++
		}
		if e.answers[name] {
			concurring++
		}
	}
	return 2*len(e.answers) > len(e.voters) && (witnesses == 0 || concurring > 0) || len(e.voters) == 0
}

// Over tells that nobody is waited for any more.
func (e *Election) Over(now time.Time) bool {
	return now.Sub(e.began) >= AskFor || now.Before(e.began)
}

// Alone decides where nobody can be asked, in a location of two nodes. neighbour
// tells whether the serving gateway answers on the location's own network, tunnel
// whether it still answers others through its tunnels. Where it answers on the
// network and does not forward, it does not serve. Where it answers nowhere, it is
// gone. Where it answers others and not its neighbour, the two are cut off from each
// other, each has its own way out, and nothing is to be taken over.
func Alone(neighbour, tunnel bool) bool { return neighbour || !tunnel }
