package cluster

import (
	"context"
	"reflect"
	"sync"
)

// onDemand watches what is asked for only now and then, and only while it is: kinds
// of objects that most clusters' agents never look at. K says what to watch, V is
// what is kept of one object.
type onDemand[K comparable, V any] struct {
	changed func() // something is new

	mu     sync.Mutex
	start  func(K, *demand[V]) // nil unless run runs
	states map[K]*demand[V]
}

// demand is what is known of one K.
type demand[V any] struct {
	source  *source
	stop    context.CancelFunc
	objects map[string]V // by name
}

func newOnDemand[K comparable, V any](changed func()) *onDemand[K, V] {
	return &onDemand[K, V]{changed: changed, states: make(map[K]*demand[V])}
}

// want says what is in use. What no longer is, is forgotten.
func (d *onDemand[K, V]) want(used map[K]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, s := range d.states {
		if !used[k] {
			if s.stop != nil {
				s.stop()
			}
			delete(d.states, k)
		}
	}
	for k := range used {
		s := d.states[k]
		if s == nil {
			s = &demand[V]{objects: make(map[string]V)}
			d.states[k] = s
		}
		if s.stop == nil && d.start != nil {
			d.start(k, s)
		}
	}
}

// look shows f what is known. answered tells whether that is the API server's word,
// or it has not spoken yet; trouble what keeps it from going on. f keeps nothing of
// the map.
func (d *onDemand[K, V]) look(k K, f func(objects map[string]V, trouble string, answered bool)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.states[k]
	if s == nil || s.source == nil {
		f(nil, "", false)
		return
	}
	answered, trouble := s.source.state()
	f(s.objects, trouble, answered)
}

// run watches until ctx ends. open makes the source of a K, read cuts an object down
// to what is kept of it.
func (d *onDemand[K, V]) run(ctx context.Context, open func(K) *source, read func(object any) (name string, value V, ok bool)) {
	var wg sync.WaitGroup
	d.mu.Lock()
	d.start = func(k K, s *demand[V]) {
		one, stop := context.WithCancel(ctx)
		s.stop, s.source = stop, open(k)
		s.source.report = d.changed
		s.source.changed = func(object any, _ bool) {
			if name, value, ok := read(object); ok {
				d.set(s, name, &value)
			}
		}
		s.source.deleted = func(object any) {
			if name, _, ok := read(object); ok {
				d.set(s, name, nil)
			}
		}
		wg.Go(func() {
			defer stop()
			// Its error is about code, not about the cluster.
			_ = s.source.run(one)
		})
	}
	for k, s := range d.states {
		d.start(k, s)
	}
	d.mu.Unlock()
	<-ctx.Done()
	d.mu.Lock()
	d.start = nil
	d.mu.Unlock()
	wg.Wait()
}

// set takes what is known of an object; nil: it is gone.
func (d *onDemand[K, V]) set(s *demand[V], name string, value *V) {
	d.mu.Lock()
	old, known := s.objects[name]
	news := known
	if value == nil {
		delete(s.objects, name)
	} else {
		news = !known || !reflect.DeepEqual(old, *value)
		s.objects[name] = *value
	}
	d.mu.Unlock()
	if news {
		d.changed()
	}
}
