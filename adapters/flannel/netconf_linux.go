package flannel

import (
	"errors"
	"fmt"

	"github.com/flannel-io/flannel/pkg/subnet"
)

// parseNetConf reads the backend out of Flannel's net-conf.json, with
// Flannel's own parser. The result never holds the rest of the file: with
// some backends it has a preshared key in it.
func parseNetConf(text string) (record, error) {
	c, err := subnet.ParseConfig(text)
	if err != nil {
		return record{}, err
	}
	if c.BackendType == "" {
		return record{}, errors.New("its Backend has no Type")
	}
	r := record{Backend: c.BackendType}
	if r.Backend == backendVXLAN {
		if err := r.setVNI(c.Backend, defaultVNI); err != nil {
			return record{}, fmt.Errorf("its Backend: %w", err)
		}
	}
	return r, nil
}
