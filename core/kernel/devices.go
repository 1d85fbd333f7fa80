package kernel

import (
	"cmp"
	"fmt"
	"slices"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// Devices returns all WireGuard devices of this network namespace, the kernel's
// and those that processes serve, by name. They hold private keys, which are
// nobody's to print.
func Devices() (devices []*wgtypes.Device, err error) {
	err = withControl(func(c *wgctrl.Client) error {
		devices, err = c.Devices()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the WireGuard devices: %w", err)
	}
	slices.SortFunc(devices, func(a, b *wgtypes.Device) int { return cmp.Compare(a.Name, b.Name) })
	return devices, nil
}
